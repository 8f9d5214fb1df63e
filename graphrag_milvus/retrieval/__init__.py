"""From a question to seeds, a subgraph, relations and passages."""
