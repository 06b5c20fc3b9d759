// Package e2e tests the programs as their users meet them: built, started, fed over loopback and files, signalled and
// killed. What lives here needs a process of its own: corrupt checkpoints that must end in one line, soaks, shutdown,
// resumed batches, and the public bugs of other engines by name.
//
// Not here: tests of one package, which lie beside it.
package e2e
