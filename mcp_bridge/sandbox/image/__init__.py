"""The sandbox's image, made of the running interpreter."""
