"""The bodies of requests and replies, as JSON Schema, for `openapi.py`."""

from __future__ import annotations

from typing import Any

from rsllm.server.schemas import TOP_LOGPROBS_LIMIT

__all__ = ["BOOLEAN", "INTEGER", "NUMBER", "STRING", "TEXTS", "Schema", "schemas"]

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
NULLABLE_STRING: Schema = {"type": ["string", "null"]}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
OBJECT: Schema = {"type": "object"}
TEXTS: Schema = {"type": "array", "items": STRING}
WARNINGS: Schema = {**TEXTS, "description": "What was done otherwise than asked."}
NANOSECONDS: Schema = {**COUNT, "description": "Nanoseconds."}
STOPS: Schema = {"anyOf": [STRING, TEXTS]}
TEMPERATURE: Schema = {"type": "number", "minimum": 0}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}


def schemas() -> dict[str, Schema]:
    """All components but the options, by name."""
    return {**_shared(), **_native(), **_models(), **_openai(), **_anthropic()}


def _object(required: str = "", /, **properties: Schema) -> Schema:
    """An object; `required` names fields, with spaces between them. A name that is a keyword has `_` behind it."""
    named = {name.removesuffix("_"): schema for name, schema in properties.items()}
    return {"type": "object", **({"required": required.split()} if required else {}), "properties": named}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _words(*words: Any) -> Schema:
    return {"enum": list(words)}


VECTOR = _list(NUMBER)
KEEP_ALIVE: Schema = {
    "type": ["string", "number"],
    "description": "How long the model stays loaded: seconds, or a duration such as `5m`; negative for ever.",
}
FORMAT: Schema = {
    "anyOf": [_words("json", ""), OBJECT],
    "description": "`json`, or a JSON schema that the answer is to meet; keys come in the order of the schema.",
}
VARIABLES: Schema = {**OBJECT, "description": "What a Jinja template is told beside the conversation."}
THINK: Schema = {"enum": [True, False, "low", "medium", "high", "max"]}
MODEL: Schema = {**STRING, "description": "The name of a model of the store."}
TRUNCATE: Schema = {**BOOLEAN, "default": False, "description": "A prompt that is too long may lose a part."}
TOP: Schema = {**COUNT, "maximum": TOP_LOGPROBS_LIMIT}


def _shared() -> dict[str, Schema]:
    error = _object(
        "error", error=STRING, hint=STRING, kind=STRING, request_id=STRING, prompt_tokens=COUNT, context=COUNT
    )
    return {
        "Error": error,
        "Anything": OBJECT,
        "Health": _object("status", status=STRING, reason=STRING),
        "Version": _object("version rsllm", version=STRING, rsllm=STRING),
        "Tool": _object(
            "function", type=STRING, function=_object("name", name=STRING, description=STRING, parameters=OBJECT)
        ),
        "ToolCall": _object(
            "function", id=STRING, function=_object("name", index=COUNT, name=STRING, arguments=OBJECT)
        ),
        "Logprob": _object(
            "token logprob",
            token=STRING,
            logprob=NUMBER,
            bytes=_list(COUNT),
            top_logprobs=_list(_object("token logprob", token=STRING, logprob=NUMBER, bytes=_list(COUNT))),
        ),
        "NativeMessage": _object(
            "role",
            role=STRING,
            content={"anyOf": [STRING, _list(_object("type", type=STRING, text=STRING))]},
            thinking=STRING,
            reasoning_content=STRING,
            images=TEXTS,
            tool_calls=_list(_one("ToolCall")),
            tool_name=STRING,
            tool_call_id=STRING,
            name=STRING,
        ),
    }


def _native() -> dict[str, Schema]:
    held: dict[str, Schema] = {"model": MODEL, "options": _one("Options"), "keep_alive": KEEP_ALIVE}
    inference: dict[str, Schema] = {
        **held,
        "stream": {**BOOLEAN, "default": True},
        "format": FORMAT,
        "think": THINK,
        "truncate": {**BOOLEAN, "default": True, "description": "A prompt that is too long may lose a part."},
        "shift": {
            **BOOLEAN,
            "description": "A full context goes on without its older half. If not given: where an answer has a limit.",
        },
        "logprobs": BOOLEAN,
        "top_logprobs": TOP,
        "_debug_render_only": {**BOOLEAN, "description": "Reply with the prompt that the template makes."},
    }
    durations = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "queue_duration")
    end: dict[str, Schema] = {
        "model": STRING,
        "created_at": {**STRING, "format": "date-time"},
        "done": BOOLEAN,
        "done_reason": _words("stop", "length", "load", "unload"),
        **dict.fromkeys(durations, NANOSECONDS),
        **dict.fromkeys(("prompt_eval_count", "eval_count", "cached_tokens", "thinking_count"), COUNT),
        "logprobs": _list(_one("Logprob")),
        "warnings": WARNINGS,
        "_debug_info": _object("rendered_template", rendered_template=STRING),
    }
    message = _object("role content", role=STRING, content=STRING, thinking=STRING, tool_calls=_list(_one("ToolCall")))
    return {
        "Generate": _object(
            "model",
            prompt=STRING,
            suffix=STRING,
            system=STRING,
            template=STRING,
            context={**_list({**COUNT, "maximum": 2**32 - 1}), "deprecated": True},
            raw=BOOLEAN,
            images=TEXTS,
            **inference,
        ),
        "Generated": _object(
            "model created_at response done", response=STRING, thinking=STRING, context=_list(COUNT), **end
        ),
        "Chat": _object(
            "model",
            messages=_list(_one("NativeMessage")),
            tools=_list(_one("Tool")),
            chat_template_kwargs=VARIABLES,
            parallel_tool_calls={
                **BOOLEAN,
                "default": True,
                "description": "False: the answer ends with its first call.",
            },
            **inference,
        ),
        "Chatted": _object("model created_at message done", message=message, **end),
        "Embed": _object(
            "model", input={"anyOf": [STRING, TEXTS]}, truncate={**BOOLEAN, "default": True}, dimensions=COUNT, **held
        ),
        "Embedded": _object(
            "model embeddings",
            model=STRING,
            embeddings=_list(VECTOR),
            total_duration=NANOSECONDS,
            load_duration=NANOSECONDS,
            prompt_eval_count=COUNT,
            warnings=WARNINGS,
        ),
        "OldEmbed": _object("model", prompt=STRING, **held),
        "OldEmbedded": _object("embedding", embedding=VECTOR, warnings=WARNINGS),
    }


def _models() -> dict[str, Schema]:
    details = _object(
        "format family parameter_size quantization_level",
        parent_model=STRING,
        format=STRING,
        family=STRING,
        families={"type": ["array", "null"], "items": STRING},
        parameter_size=STRING,
        quantization_level=STRING,
    )
    listed: dict[str, Schema] = {"name": STRING, "model": STRING, "size": COUNT, "digest": STRING, "details": OBJECT}
    files: Schema = {
        "type": "object",
        "additionalProperties": {"type": "string", "pattern": "^sha256[:-][0-9a-f]{64}$"},
    }
    return {
        "Name": _object(model=STRING, name={**STRING, "deprecated": True}),
        "Copy": _object("source destination", source=STRING, destination=STRING),
        "Transfer": _object(
            model=STRING, name={**STRING, "deprecated": True}, insecure=BOOLEAN, stream={**BOOLEAN, "default": True}
        ),
        "Progress": _object(status=STRING, digest=STRING, total=COUNT, completed=COUNT, error=STRING),
        "Details": details,
        "Tags": _object(
            "models",
            models=_list(
                _object(
                    "name model modified_at size digest details",
                    modified_at=STRING,
                    capabilities=TEXTS,
                    error=STRING,
                    **listed,
                )
            ),
        ),
        "Running": _object(
            "models",
            models=_list(
                _object(
                    "name model size digest expires_at size_vram context_length phase",
                    expires_at=STRING,
                    size_vram=COUNT,
                    context_length=COUNT,
                    context_reason=STRING,
                    phase=_words("planning", "waiting", "loading", "ready"),
                    requests=COUNT,
                    running=COUNT,
                    queued=COUNT,
                    pid={"type": ["integer", "null"]},
                    **listed,
                )
            ),
        ),
        "Show": _object(
            model=STRING, name={**STRING, "deprecated": True}, verbose=BOOLEAN, system=STRING, options=_one("Options")
        ),
        "Shown": _object(
            "modelfile template details model_info capabilities modified_at",
            license=STRING,
            modelfile=STRING,
            parameters=STRING,
            template=STRING,
            system=STRING,
            details=_one("Details"),
            messages=_list(OBJECT),
            model_info=OBJECT,
            tensors=_list(_object("name type shape", name=STRING, type=STRING, shape=_list(COUNT))),
            capabilities=TEXTS,
            modified_at=STRING,
            requires=STRING,
        ),
        "Create": _object(
            model=STRING,
            name={**STRING, "deprecated": True},
            stream={**BOOLEAN, "default": True},
            from_={**STRING, "description": "A model to start from; it is pulled where it is missing."},
            files={**files, "description": "Digests of blobs, by file name."},
            adapters=files,
            draft_files=files,
            template=STRING,
            system=STRING,
            license={"anyOf": [STRING, TEXTS]},
            parameters=_one("Options"),
            messages=_list(_object("role content", role=_words("system", "user", "assistant", "tool"), content=STRING)),
            renderer=STRING,
            parser=STRING,
            requires=STRING,
            quantize={**STRING, "description": "Refused: models cannot be quantized yet."},
            draft_quantize=STRING,
            remote_host=STRING,
        ),
    }


def _openai() -> dict[str, Schema]:
    usage = _object(
        "prompt_tokens completion_tokens total_tokens",
        prompt_tokens=COUNT,
        completion_tokens=COUNT,
        total_tokens=COUNT,
        prompt_tokens_details=_object(cached_tokens=COUNT),
        completion_tokens_details=_object(reasoning_tokens=COUNT),
    )
    content: Schema = {
        "anyOf": [NULLABLE_STRING, _list(_object("type", type=STRING, text=STRING, image_url=OBJECT))],
    }
    past_call = _object(
        "function", id=STRING, type=STRING, function=_object("name arguments", name=STRING, arguments=STRING)
    )
    message = _object(
        "role", role=STRING, content=content, name=STRING, tool_call_id=STRING, tool_calls=_list(past_call),
        reasoning=STRING, reasoning_content=STRING,
    )  # fmt: skip
    sampling: dict[str, Schema] = {
        "model": MODEL,
        "stream": BOOLEAN,
        "stream_options": _object(include_usage=BOOLEAN),
        "temperature": TEMPERATURE,
        "top_p": SHARE,
        "frequency_penalty": NUMBER,
        "presence_penalty": NUMBER,
        "seed": INTEGER,
        "stop": STOPS,
        "n": {**COUNT, "description": "How many answers."},
        "logit_bias": {"type": "object", "additionalProperties": NUMBER},
        "max_tokens": COUNT,
        "truncate": TRUNCATE,
    }
    head: dict[str, Schema] = {"id": STRING, "object": STRING, "created": COUNT, "model": STRING, "warnings": WARNINGS}
    finish = {"finish_reason": _words("stop", "length", "tool_calls", "content_filter", None)}
    ids: Schema = {**_list(COUNT), "minItems": 1}
    prompts: Schema = {"anyOf": [STRING, {**TEXTS, "minItems": 1}, ids, {**_list(ids), "minItems": 1}]}
    effort = _words("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
    choice: Schema = {"anyOf": [_words("none", "auto", "required"), OBJECT]}
    model = _object("id object created owned_by", id=STRING, object=STRING, created=INTEGER, owned_by=STRING)
    embeddings = _list(_object("embedding index", object=STRING, embedding={"anyOf": [VECTOR, STRING]}, index=COUNT))
    return {
        "OpenAIError": _object(
            "error",
            error=_object(
                "message type", message=STRING, type=STRING, param=NULLABLE_STRING, code=NULLABLE_STRING, hint=STRING
            ),
        ),
        "OpenAIChat": _object(
            "model messages",
            messages={**_list(message), "minItems": 1},
            max_completion_tokens=COUNT,
            response_format=_object("type", type=_words("text", "json_object", "json_schema"), json_schema=OBJECT),
            reasoning=_object(effort=effort),
            reasoning_effort=effort,
            logprobs=BOOLEAN,
            top_logprobs=TOP,
            tools=_list(_one("Tool")),
            tool_choice=choice,
            parallel_tool_calls=BOOLEAN,
            chat_template_kwargs=VARIABLES,
            store=BOOLEAN,
            _debug_render_only=BOOLEAN,
            **sampling,
        ),
        "OpenAIChatted": _object(
            "id object created model choices usage",
            choices=_list(
                _object("index message finish_reason", index=COUNT, message=OBJECT, logprobs=OBJECT, **finish)
            ),
            usage=usage,
            system_fingerprint=STRING,
            _debug_info=OBJECT,
            **head,
        ),
        "OpenAICompletion": _object(
            "model", prompt=prompts, suffix=STRING, logprobs=TOP, best_of=COUNT, echo=BOOLEAN, **sampling
        ),
        "OpenAICompleted": _object(
            "id object created model choices usage",
            choices=_list(
                _object(
                    "index text finish_reason", index=COUNT, text=STRING, reasoning=STRING, logprobs=OBJECT, **finish
                )
            ),
            usage=usage,
            system_fingerprint=STRING,
            **head,
        ),
        "OpenAIEmbed": _object(
            "model input",
            model=MODEL,
            input={"anyOf": [STRING, TEXTS]},
            dimensions=COUNT,
            encoding_format=_words("float", "base64"),
        ),
        "OpenAIEmbedded": _object(
            "object data model usage",
            object=STRING,
            data=embeddings,
            model=STRING,
            usage=_object("prompt_tokens total_tokens", prompt_tokens=COUNT, total_tokens=COUNT),
            warnings=WARNINGS,
        ),
        "OpenAIResponse": _object(
            "model input",
            model=MODEL,
            input={"anyOf": [STRING, _list(OBJECT)]},
            instructions=STRING,
            stream=BOOLEAN,
            temperature=TEMPERATURE,
            top_p=SHARE,
            max_output_tokens=COUNT,
            top_logprobs=TOP,
            text=_object(format=OBJECT),
            reasoning=_object(effort=effort, summary=STRING),
            tools=_list(OBJECT),
            tool_choice=choice,
            truncation=_words("auto", "disabled"),
            parallel_tool_calls=BOOLEAN,
            store=BOOLEAN,
            background=BOOLEAN,
        ),
        "OpenAIResponded": _object(
            "id object status output", status=STRING, output=_list(OBJECT), created_at=COUNT, **head
        ),
        "OpenAIModel": model,
        "OpenAIModels": _object("object data", object=STRING, data=_list(model)),
    }


def _anthropic() -> dict[str, Schema]:
    blocks: Schema = {"anyOf": [STRING, _list(_object("type", type=STRING, text=STRING))]}
    message: dict[str, Schema] = {
        "model": MODEL,
        "max_tokens": {"type": "integer", "minimum": 1},
        "messages": {**_list(_object("role content", role=STRING, content=blocks)), "minItems": 1},
        "system": blocks,
        "stream": BOOLEAN,
        "temperature": TEMPERATURE,
        "top_p": SHARE,
        "top_k": COUNT,
        "truncate": TRUNCATE,
        "stop_sequences": TEXTS,
        "thinking": _object("type", type=STRING, budget_tokens=COUNT),
        "output_config": _object(effort=STRING),
        "tools": _list(_object("name", name=STRING, description=STRING, input_schema=OBJECT)),
        "tool_choice": _object("type", type=_words("auto", "any", "none", "tool"), name=STRING),
        "cache_control": OBJECT,
    }
    return {
        "AnthropicError": _object(
            "type error", type=STRING, error=_object("type message", type=STRING, message=STRING), request_id=STRING
        ),
        "Message": _object("model messages max_tokens", **message),
        "MessageCount": _object("model messages", **message),
        "MessageCounted": _object("input_tokens", input_tokens=COUNT, warnings=WARNINGS),
        "Messaged": _object(
            "id type role model content stop_reason usage",
            id=STRING,
            type=STRING,
            role=STRING,
            model=STRING,
            content=_list(OBJECT),
            stop_reason=NULLABLE_STRING,
            stop_sequence=NULLABLE_STRING,
            usage=_object("input_tokens output_tokens", input_tokens=COUNT, output_tokens=COUNT),
            warnings=WARNINGS,
        ),
    }
