#!/bin/sh
# Stands in for rustdoc in `cargo test --doc`: after the examples of a crate it checks the documentation of the crate, with the
# libraries that the tests use. `cargo doc` would compile all dependencies once more.
set -eu
rustdoc "$@"
for argument; do
  shift
  [ "$argument" = --test ] || set -- "$@" "$argument"
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
rustdoc "$@" -D warnings --out-dir "$folder"
