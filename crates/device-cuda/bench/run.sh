#!/bin/bash
# Builds kernels and benches with the machine's nvcc and NVRTC, checks everything, then times it.
# Usage: run.sh [gemm] [stress] [attention] [decode] [row] [chain]. NOTES.md lists the variables.
# Run it in the folder that has kernels/ and bench/. Logs go to $OUT.
[ -z "$PREBUILT" ] || PREBUILT=$(readlink -f "$PREBUILT")
cd "$(dirname "$0")/.."
K=$PWD/kernels B=/tmp/build
[ -d "$K" ] || K=$PWD/src/kernels
# Headers that the kernels of all GPUs share.
G=$PWD/../device-gpu/src/kernels
mkdir -p $B; export K B G
which nvcc >/dev/null || export PATH=/usr/local/cuda/bin:$PATH
one() { nvcc -std=c++17 -O3 --split-compile=0 $FLAGS -I $K -I $G -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -cubin -o $B/$(basename $1 .cu).cubin $1 >$B/$(basename $1).log 2>&1 || { echo "FAILED $1"; grep -m3 error $B/$(basename $1).log; }; }
host() { g++ -O3 -march=native -std=c++17 -I $K -I $G -I bench -I $(dirname $(dirname $(readlink -f $(which nvcc))))/include -I /usr/local/cuda/include -o $B/$1 bench/$1.cc $LIB 2>$B/$1.err || { echo "FAILED $1"; grep -m5 error $B/$1.err; }; }
export LIB=$(ldconfig -p | grep -m1 "libcuda.so.1" | sed "s/.*=> //")
[ -n "$LIB" ] || LIB=$(find / -name "libcuda.so*" -not -path "/proc/*" 2>/dev/null | head -1)
# Compiles by NVRTC, which takes names of headers as paths from kernels/.
own() { NVRTC=${NVRTC:-$(find / -name "libnvrtc.so.1[23]" -not -path "/proc/*" 2>/dev/null | head -1)} python3 bench/nvrtc.py $K $1 $B/$(basename $1 .cu).cubin || echo "FAILED $1"; }
# Compiles a text outside of kernels/ by NVRTC.
text() { NVRTC=${NVRTC:-$(find / -name "libnvrtc.so.1[23]" -not -path "/proc/*" 2>/dev/null | head -1)} python3 bench/nvrtc.py $K - $B/$(basename $1 .cu).cubin <$1 || echo "FAILED $1"; }
export -f one host own text
# Prints the kernels of the decode bench, as src/persistent/general.rs does, and lists their files.
decode_kernels() {
  echo own persistent/persistent_repack.cu
  for heads in "64 2" "64 3" "64 4" "128 2" "128 3" "128 4" "128 8"; do
    set -- $heads
    for kind in "decode PERSISTENT_KERNEL " "decode_rows PERSISTENT_ROWS_KERNEL rows_"; do
      read -r header macro rows <<<"$kind"
      printf '#include "persistent/%s.cuh"\n%s(persistent_decode_%s%s_%s, %s, %s, PAGES_F16, false)\n' \
        "$header" "$macro" "$rows" "$1" "$2" "$1" "$2" >"$B/decode_$rows$1_$2.cu"
      echo "text $B/decode_$rows$1_$2.cu"
    done
  done
}
S=$(date +%s)
[ -z "$PREBUILT" ] || cp "$PREBUILT"/*.cubin $B/
for what in "$@"; do
  [ -z "$PREBUILT" ] || { case $what in stress) echo host gemm;; *) echo host $what;; esac; continue; }
  case $what in
    gemm|stress) ls $K/gemm/*.cu | grep -E "${ONLY:-.}"; echo host gemm;;
    attention) for f in flash wgmma; do echo own attention/${f}_f16.cu; done; echo host attention;;
    decode) decode_kernels; echo host decode;;
    row) for f in linear/q4_0 linear/q8_0 qk_rope_kv attention/pages_f16 attention/row_f16 argmax; do echo own $f.cu; done; echo host row;;
    chain) for f in wgmma_q4 mma_q4 input; do echo own gemm/$f.cu; done; echo host chain;;
  esac
done | xargs -P 16 -I{} bash -c 'set -- {}; case $1 in host) host $2;; own) own $2;; text) text $2;; *) one $1;; esac'
echo "built in $(( $(date +%s) - S )) s"; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
grep -h -E "C75|[1-9][0-9]* bytes spill stores" $B/*.log | sort | uniq -c | head
cp $B/*.log $OUT/ 2>/dev/null; cat $B/*.log > /tmp/all.log; rm -f $OUT/*.log; cp /tmp/all.log $OUT/build.log
for what in "$@"; do
  case $what in
    stress) timeout 60 $B/gemm $B stress 2>&1 | tee $OUT/stress.txt;;
    gemm) timeout 150 $B/gemm $B check 2>&1 | tee $OUT/gemm_check.txt | grep -v " ok$"; timeout 120 $B/gemm $B time 2>&1 | tee $OUT/gemm_time.txt | cut -c1-${WIDE:-400}
      [ "${PIPESTATUS[0]}" = 0 ] || { CONTEXT=1 $B/gemm $B gate; CONTEXT=1 timeout 60 compute-sanitizer --tool memcheck $B/gemm $B gate 2>&1 | head -12; };;
    attention) timeout 60 $B/attention $B 2>&1 | tee $OUT/attention.txt;;
    row) timeout 60 $B/row $B 2>&1 | tee $OUT/row.txt;;
    chain) for rows in 8 64 120 200 1024; do for i in 1 2 3 4 5 6; do timeout 20 $B/chain $B $rows 2>&1 | tail -1; done; done | tee $OUT/chain.txt;;
    decode) timeout ${DECODE_LIMIT:-150} $B/decode $B $DECODE 2>&1 | tee $OUT/decode.txt;;
  esac
done
