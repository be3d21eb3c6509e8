"""OpenAI's Responses, translated to chats."""
