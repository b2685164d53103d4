"""What a model is to a pipeline, and how it is read from a config.json.

Decision: `reader.load_architecture` is the door; the rest of the room is how it knows.
"""
