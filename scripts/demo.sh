#!/usr/bin/env bash
# Shows a question answered by the small model that comes with Megalith, and the way on.
set -euo pipefail
megalith=$1

"$megalith" chat --baseline \
  --prompt "Mia has 48 marbles. She gives 15 marbles to Tom and then finds 7 more. How many marbles does Mia have now?"
cat <<END

That was tiny-qwen, a model small enough to come with the source, and its draft, which guesses several tokens at once.
Go on with

  $megalith chat                                  talk with it
  $megalith chat --model DIRECTORY                a Qwen3.5, 3.6 or 3.8 checkpoint from Hugging Face
  $megalith chat --model Qwen/Qwen3.5-0.8B        the same, from the hub's cache on this machine
  $megalith --help                                all commands
END
