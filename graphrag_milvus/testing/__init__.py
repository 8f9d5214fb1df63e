"""Stand-ins for a model, an embedder and an OpenAI-compatible endpoint, to test code that uses this package.

None of them needs a key or a network beyond loopback, and each gives the same result in every process.

    with ScriptedServer(["Basel", Reply(status=429, headers={"Retry-After": "1"}), "Riehen"]) as server:
        settings = LLMSettings(base_url=server.base_url)
"""

from graphrag_milvus.testing.models import HashingEmbeddings, ScriptedChatModel, ScriptExhaustedError
from graphrag_milvus.testing.server import Reply, Request, ScriptedServer

__all__ = ["HashingEmbeddings", "Reply", "Request", "ScriptExhaustedError", "ScriptedChatModel", "ScriptedServer"]
