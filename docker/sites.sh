#!/usr/bin/env bash
# A federation to try on one machine: the folders of a server, two sites and a lead, with all their keys in one place.
#   docker/sites.sh FOLDER SERVER [PORT]
# Where machines are of different people each of them makes a folder and a key of its own: fedlit/sites/hospital.md.
set -euo pipefail
folder=$(realpath -m "$1") server=$2 port=${3:-8002}

if [ -e "$folder/lead/startup" ]; then
  echo "$folder is there already"
  exit
fi
data='{class_path: PhantomCXR, init_args: {hospitals: 2, images: 1200, image_size: 48, batch_size: 16}}'
fedlit site init "$folder/server" --role server --name "$server" --org university --port "$port"
fedlit site init "$folder/north" --name north --org north_hospital --data "$data" --share '1 of 2'
fedlit site init "$folder/south" --name south --org south_hospital --data "$data" --share '2 of 2'
fedlit site init "$folder/lead" --role lead --name lead@example.org --org university --sites north south

cd "$folder/server"
nvflare cert init --profile project.yaml -o ca
fingerprint=$(python -c "import json; print(json.load(open('ca/ca.json'))['rootCA_fingerprint'])")

join() { # the folder of somebody, and the name in the certificate
  cd "$folder/$1"
  nvflare cert request -p participant.yaml
  nvflare cert approve "$2/$2.request.zip" -c ../server/ca --profile ../server/project.yaml
  nvflare package "$2/$2.signed.zip" --fingerprint "$fingerprint"
  cp -r "workspace/fedlit/prod_00/$2/." .
  rm -r workspace
  chmod 700 startup
}
join server "$server" & joining=("$!")
join north north & joining+=("$!")
join south south & joining+=("$!")
join lead lead@example.org & joining+=("$!")
for each in "${joining[@]}"; do wait "$each"; done
