"""Developer tools: code generation and the demo."""
