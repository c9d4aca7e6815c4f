"""The gradient of the whole batch from uneven batches, with DDP and FSDP."""
