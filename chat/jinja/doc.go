// Package jinja renders the subset of Jinja that chat templates use, with
// Python's value semantics: str() and repr() of values, truth, int against
// float, ordered mappings, json.dumps formatting and Jinja's undefined rules.
// Settings are those of chat tooling: trim_blocks and lstrip_blocks on,
// autoescape off, loop controls and the generation tag present, an immutable
// sandbox.
//
// A template may come from a stranger: source size, nesting, work, memory and
// output are bounded by [Limits], and passing one is an error like any other.
// Template inheritance, includes and imports do not live here, and neither
// does any knowledge of messages, tools or models.
package jinja
