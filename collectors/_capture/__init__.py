"""What `rca capture` does on a live host. The standard library, py-spy as a program, and NVML where it is: this runs in training images."""
