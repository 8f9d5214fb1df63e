"""From documents to rows: reading, splitting, extraction, vectors and writing."""
