"""PTX as text: parsed, followed, folded and explained. Neither Triton nor a GPU is needed."""
