# Sourced on the GPU machine, from the checkout: puts what carry.sh has gathered where Python finds it.
mkdir -p /tmp/site
for wheel in .carry/*.whl; do python3 -m zipfile -e "$wheel" /tmp/site & done
tar xJf .carry/site.txz -C /tmp/site
wait
export PYTHONPATH=$PWD:/tmp/site PYTHONUNBUFFERED=1
python3 -m compileall -q -j 0 accel_rl benchmarks > /dev/null || true
