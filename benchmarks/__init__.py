"""Scripts that measure or fit; not part of the package."""
