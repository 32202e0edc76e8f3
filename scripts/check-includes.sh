#!/usr/bin/env bash
# Checks the includes of src/ against the rooms of the house (docs/architecture.md): each room, and the rooms that its
# files may include beside their own. What lies in a folder of a machine (machines/cpu/) is that machine's own.
set -euo pipefail
cd "$(dirname "$0")/../src"

declare -A may_include=(
  [base]=""
  [text]="base"
  [program]="base"
  [weights]="base program"
  [models]="base program"
  [reference]="base program"
  [ranks]="base"
  [machines]="base program ranks"
  [engine]="base text weights program models ranks machines"
  [server]="base text engine"
  [cli]="base text weights program models reference ranks machines engine server"
)

wrong=0
while IFS=: read -r file line include; do
  room=${file%%/*}
  other=${include%%/*}
  if [[ -z ${may_include[$room]+known} ]]; then
    echo "src/$file: the room $room is not in scripts/check-includes.sh"; wrong=1; continue
  fi
  if [[ $other != "$room" && " ${may_include[$room]} " != *" $other "* ]]; then
    echo "src/$file:$line: $room may not include \"$include\" (it may include: ${may_include[$room]:-nothing of ours})"; wrong=1
  fi
  if [[ $other == machines && $room != machines && $include == machines/*/* ]]; then
    echo "src/$file:$line: outside machines/ only the headers in it may be included, none of a machine, as \"$include\""; wrong=1
  fi
done < <(grep -rnoP --include='*.h' --include='*.cc' '^\s*#include "\K[^"]+' . | sed 's|^\./||')
exit $wrong
