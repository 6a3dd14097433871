//go:build assets

package main

import "errors"

const embedded = false

func runEmbedded(*plan) error { return errors.New("built without servers of its own") }
