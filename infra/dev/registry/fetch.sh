#!/usr/bin/env bash
# Unpacks Apicurio Registry into the folder $1, once; prints nothing. Needs Java 17 and Maven, no Docker.
set -euo pipefail
dest=$1
version=2.6.13.Final
coordinates=io.apicurio:apicurio-registry-app:$version:tar.gz:all
mkdir -p "$(dirname "$dest")"
exec 9>"$dest.lock"
flock -w 600 9
[[ -d $dest ]] && exit 0
fresh=$(mktemp -d "$dest.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
cd "$fresh"
timeout 600 mvn -B -q dependency:get -Dartifact=$coordinates -Dtransitive=false </dev/null >&2
timeout 600 mvn -B -q dependency:copy -Dartifact=$coordinates -DoutputDirectory="$fresh/archive" </dev/null >&2
mkdir app
tar -xzf archive/*.tar.gz -C app
mv app "$dest"
