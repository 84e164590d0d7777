"""firstfault: which rank of a distributed training job failed first, why, and what to do next."""

__version__ = "0.1.0"
__all__ = ["__version__"]
