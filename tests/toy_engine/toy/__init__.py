"""Toy: fixed groups of requests that follow one another through the stages."""
