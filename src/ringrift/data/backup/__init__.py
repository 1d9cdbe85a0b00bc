"""Archives in buckets and on drives: what goes there, whether it is sound, and the way back."""
