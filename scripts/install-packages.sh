#!/usr/bin/env bash
# Installs the Debian packages of packages.txt that are missing. Quick, and silent, when none is. Lines that end with
# "only: WHAT" are for install-packages.sh WHAT.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
for package in $(sed "/only: ${1:-nothing}\$/! {/only:/d}; s/#.*//" packages.txt); do
  state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [[ $state == ii* ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

echo "installing: ${missing[*]}"
as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "these Debian packages are missing, and there is no sudo to install them with: ${missing[*]}" >&2
    echo "Run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
