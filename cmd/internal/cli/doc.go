// Package cli is what the programs share: the flags that say which model runs how, recipes' flags that have no meaning
// here, loading a model with a progress line, and errors as one line.
//
// Not here: flags of one program alone, and what the flags do (engine, server).
package cli
