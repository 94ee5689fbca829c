"""What sources, sink and jobs share: options, connections, planning, datasets."""
