"""Operations on a metadata store: changes in compare-and-set loops, pages of streams, dumps."""
