"""The parts that sources, sink and jobs share: options, connections, planning, datasets."""
