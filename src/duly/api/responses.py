"""JSON answers, of successes and problems alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


def json_response(
    document: Any,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    try:
        body = text.encode()
    except UnicodeEncodeError:
        # A lone surrogate, in a name that is being refused for it. JSON can carry it only when escaped.
        body = json.dumps(document, separators=(",", ":")).encode()
    return Response(body, status_code=status, headers=headers, media_type=media_type)
