"""A dialect unlike the others, after Gemini's generateContent (ai.google.dev/api/generate-content): model and verb in
the path, `contents` of `parts`, a nested limit, `usageMetadata`, a JSON array in place of events, errors with a status.
"""
