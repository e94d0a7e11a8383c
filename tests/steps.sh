# Steps of a test script, sourced by it: each is timed, a failed one does not end the script, and finish() tells.
failed=()
step() {  # step NAME COMMAND...: prints the name and the time of a step; continues if it fails
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@" || failed+=("$name")
  echo "== $name: $((SECONDS - start)) s"
}
finish() {  # exit code 1 if a step has failed
  if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
  fi
  echo "all steps passed in $SECONDS s"
}
