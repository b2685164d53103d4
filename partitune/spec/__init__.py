"""The two kinds of YAML file a person writes, read strictly."""
