"""The training job that :func:`evenstep.init` returns, made from the rooms below."""
