// Package api answers requests of the OpenAI API without HTTP: the JSON of a request goes in, the JSON of an answer comes
// out, whole or in chunks. The server package puts it behind routes, the generate command feeds it lines of a file; both
// therefore accept and refuse the same requests.
//
// Here live: the meaning of every request field and its bounds, the errors that name a field, stop strings, and the
// shapes of answers.
//
// Not here: routes, headers and event framing (server), which request runs when (engine), chat templates and the parsing
// of reasoning and tool calls (chat).
package api
