package main

import "errors"

func engineCommand([]string) error { return errors.New("engine: soon") }
