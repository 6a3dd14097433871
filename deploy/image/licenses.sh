#!/usr/bin/env bash
# Prints the licenses of all packages that are linked into the program: deploy/image/licenses.sh FEATURES TARGET
#
# Each text is printed once, with its packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

texts=$(mktemp -d)
trap 'rm -rf "$texts"' EXIT
sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
cargo tree --locked --features "$1" --target "$2" --edges normal --prefix none --format '{p}|{l}' | sed 's/ (\*)//' | LC_ALL=C sort -u |
  while IFS='|' read -r package license; do
    # Our own packages have a path: their license is LICENSE.
    case $package in *\(/*) continue ;; esac
    read -r name version _ <<< "$package"
    echo "$name ${version#v}: $license" >> "$texts/index"
    for file in "$sources"/*/"$name-${version#v}"/{LICEN[CS]E,COPYING,NOTICE,UNLICENSE}*; do
      [ -f "$file" ] || continue
      sum=$(sha256sum < "$file" | cut -c1-64)
      cp "$file" "$texts/$sum.text"
      echo "$name ${version#v}" >> "$texts/$sum.packages"
    done
  done

echo "Packages that are linked into this program, and their licenses"
echo
cat "$texts/index"
for packages in "$texts"/*.packages; do
  printf '\n%s\n\n' "--------------------------------------------------------------------------------"
  echo "Of $(paste -sd, "$packages" | sed 's/,/, /g'):"
  echo
  cat "${packages%.packages}.text"
done
