"""`python -m graphrag_milvus` is the command line."""

from graphrag_milvus.cli import main

if __name__ == "__main__":
    main()
