"""Chats over HTTP, one JSON object per line: INTERLOCK_MODEL=openai:NAME uvicorn fastapi_app:app"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from interlock import Agent, AgentRunConfig
from interlock.events import RunFinished, StreamRestarted, TextDelta


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with await Agent.create(os.environ["INTERLOCK_MODEL"], journal="sqlite:///chats.db") as app.state.agent:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chats/{session_id}")
async def chat(session_id: str, prompt: str) -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        async with aclosing(app.state.agent.stream(prompt, config=AgentRunConfig(session_id=session_id))) as events:
            async for event in events:
                match event:
                    case TextDelta(text):
                        yield json.dumps({"text": text}) + "\n"
                    case StreamRestarted():
                        yield json.dumps({"withdrawn": event.reason}) + "\n"
                    case RunFinished():
                        yield json.dumps({"outcome": event.result.outcome.value, "answer": event.result.text}) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")
