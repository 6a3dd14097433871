#!/usr/bin/env bash
# Builds the root file system of an image: deploy/image/root.sh FEATURES ARCHITECTURE FOLDER
#
# The program is linked statically with glibc, not musl: musl's allocator ignores the MALLOC_* variables of the image. The
# image contains no paths and times of this machine, so that the same commit gives the same bytes. Needs cargo-auditable and
# auditable2cdx, which list the dependencies in the program and as a file, and for arm64 on another machine gcc-aarch64-linux-gnu.
set -euo pipefail
features=$1 architecture=$2 root=$3
cd "$(dirname "$0")/../.."

case $architecture in
  amd64) target=x86_64-unknown-linux-gnu linker=x86_64-linux-gnu ;;
  arm64) target=aarch64-unknown-linux-gnu linker=aarch64-linux-gnu ;;
  *) echo "unknown architecture $architecture: takes amd64 or arm64" >&2; exit 1 ;;
esac
# An image for tests keeps the path of its checkout: another checkout then reuses the dependencies that are built.
source=${CCM_KEPT_PATH:-$PWD}
variable=${target//-/_}
declare -x "CC_$variable=$linker-gcc" "CXX_$variable=$linker-g++" "AR_$variable=$linker-ar"
declare -x "CARGO_TARGET_${variable^^}_LINKER=$linker-gcc"
declare -x "CFLAGS_$variable=-ffile-prefix-map=$source=/source -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo"
declare -x "CXXFLAGS_$variable=-ffile-prefix-map=$source=/source -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo"
targets=${CARGO_TARGET_DIR:-$PWD/target}
sysroot=$(rustc --print sysroot)
# The linker's short form of relocations is half a megabyte less to read at the start.
export RUSTFLAGS="-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs -C link-arg=-Wl,--build-id=none \
  --remap-path-prefix=$targets=/target --remap-path-prefix=$source=/source \
  --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo --remap-path-prefix=$sysroot=/rust"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export CCM_COMMIT=${CCM_COMMIT:-$(git rev-parse --short=12 HEAD)}

cargo auditable build --release --locked --target "$target" --features "$features" --bin cloud-controller-manager

rm -rf "$root"
mkdir -p "$root/bin" "$root/etc/ssl/certs" "$root/licenses"
cp "$targets/$target/release/cloud-controller-manager" "$root/bin/"
# Charts and manifests of the Go programs set `command` to these.
case $features in
  all-providers) clouds=$(cd providers && ls -d ./*/ | tr -d ./ | grep -v '^core$') ;;
  *) clouds=${features//,/ } ;;
esac
for cloud in $clouds; do
  ln -s cloud-controller-manager "$root/bin/$cloud-cloud-controller-manager"
done
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
echo 'ccm:x:65532:65532::/:/sbin/nologin' > "$root/etc/passwd"
echo 'ccm:x:65532:' > "$root/etc/group"
cp LICENSE "$root/licenses/"
auditable2cdx "$root/bin/cloud-controller-manager" > "$root/sbom.cdx.json"
deploy/image/licenses.sh "$features" "$target" > "$root/licenses/THIRD-PARTY.txt"

find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
