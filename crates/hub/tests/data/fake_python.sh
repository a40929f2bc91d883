#!/bin/sh
# A replacement of Python with pip. `fake_python.sh -m pip download … -d DEST --shelf SHELF
# PACKAGE==VERSION` copies the wheels in SHELF/PACKAGE to DEST, and adds the package to SHELF/log.
[ "$1 $2 $3" = "-m pip download" ] || { echo "unexpected: $*" >&2; exit 9; }
while [ $# -gt 0 ]; do
    case "$1" in
        -d) dest=$2; shift ;;
        --shelf) shelf=$2; shift ;;
        *==*) package=${1%%==*} ;;
    esac
    shift
done
echo "$package" >> "$shelf/log"
if [ -e "$shelf/no-pip" ]; then
    echo "python: No module named pip" >&2
    exit 1
fi
if [ ! -e "$shelf/$package" ]; then
    echo "ERROR: No matching distribution found for $package" >&2
    exit 1
fi
cp "$shelf/$package"/* "$dest"/
