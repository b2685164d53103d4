"""From the bytes of a YAML file to a checked model that remembers its lines."""
