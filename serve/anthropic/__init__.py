"""Anthropic's endpoints: messages, translated to chats."""
