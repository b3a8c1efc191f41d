"""What tests of the pipeline share: calls of `generate`, seen, and lengths counted without the package."""


def spy(monkeypatch, model) -> list[dict]:
    """The keyword arguments of each call to `generate`, the length as a list, with the ids that it gave."""
    calls: list[dict] = []
    original = model.generate

    def generate(*args, **kwargs):
        ids = original(*args, **kwargs)
        target = kwargs.get("length")
        calls.append({**kwargs, "length": target and target.length.tolist(), "ids": ids})
        return ids

    monkeypatch.setattr(model, "generate", generate)
    return calls


def independent_length(text: str, unit: str) -> int:
    return {"character": len(text), "word": len(text.split()), "byte": len(text.encode())}[unit]
