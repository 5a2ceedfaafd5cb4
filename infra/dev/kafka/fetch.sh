#!/usr/bin/env bash
# Puts Apache Kafka's jars into the folder $1, once; prints nothing. Needs Java 17 and Maven, no Docker.
set -euo pipefail
lib=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$(dirname "$lib")"
exec 9>"$lib.lock"
flock -w 600 9
[[ -d $lib ]] && exit 0
fresh=$(mktemp -d "$lib.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
# From a copy: Maven writes beside its pom.
cp "$here/pom.xml" "$fresh/pom.xml"
timeout 600 mvn -B -q -f "$fresh/pom.xml" dependency:copy-dependencies \
  -DoutputDirectory="$fresh/lib" -DincludeScope=runtime </dev/null >&2
mv "$fresh/lib" "$lib"
