"""Texts of every kind that agents send, always the same."""

from __future__ import annotations

import base64
import inspect
import json
import pydoc_data.topics
import random

_ROWS = [{"id": i, "name": f"item {i}", "price": i * 1.37, "tags": ["a", "b"], "note": None} for i in range(120)]

TEXTS = {
    "English": "".join(text for _, text in sorted(pydoc_data.topics.topics.items()))[:20_000],
    "German": "Das Kontextfenster begrenzt, wie viele Wörter ein Modell auf einmal lesen kann; ältere fallen weg. "
    * 60,
    "Chinese": "上下文窗口是模型一次可以处理的标记数量上限,包括输入和输出。较早的消息会被压缩成摘要。" * 60,
    "Japanese": "コンテキストウィンドウは、モデルが一度に処理できるトークンの最大数です。" * 60,
    "Russian": "Контекстное окно ограничивает число токенов, которое модель может обработать за один раз. " * 60,
    "code": inspect.getsource(json.decoder),
    "JSON": json.dumps(_ROWS),
    "base64": base64.b64encode(random.Random(7).randbytes(6_000)).decode(),
    "emoji": "👩‍💻🚀🎉😀👍🏽🔥 ✅ " * 100,
    "log": "".join(
        f"2026-11-22T05:{i % 60:02}:07.{i:03}Z INFO  worker-{i % 8} GET /v1/items/{i * 7919} 200 {i}ms\n"
        for i in range(150)
    ),
}
