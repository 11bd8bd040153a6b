def source_features(source: str) -> dict[str, float]:
    return {}
