// Package chat turns a conversation into a prompt and a model's output back
// into a message: it validates and normalises OpenAI messages and tools,
// renders the model's chat template, and splits generated text into reasoning,
// content and tool calls while it streams.
//
// The template language lives in chat/jinja. HTTP, tokenization and sampling
// do not live here: the server hands in raw JSON fields and pairs of token id
// and text.
package chat
