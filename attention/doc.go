// Package attention is grouped-query attention over a paged cache: the mixer of both families and the pool of pages.
//
// Shapes. A step has tokens rows of hidden columns. One product gives [q | k | v]: q is [tokens, q heads * head dim], or
// [q | gate] head by head where the output is gated; k and v are [tokens, kv heads * head dim]. Pages are laid out as
// kernels.KV says; a page id covers PageTokens tokens of all layers, MTP layers last, which lie side by side so that a
// page is saved, loaded or copied in one piece. Page 0 is null.
//
// Not here: who owns which page (engine/states), mathematics (kernels).
package attention
