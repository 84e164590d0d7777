"""The weekly report: one document, as Markdown and as one HTML file."""
