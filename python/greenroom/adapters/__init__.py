"""Greenroom inside other programs: Inspect, Concordia and `llm`. Each module needs the package that it adapts to."""
