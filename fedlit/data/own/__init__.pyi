from fedlit.data.own.class_folders import ClassFolders as ClassFolders
from fedlit.data.own.image_table import ImageTable as ImageTable
from fedlit.data.own.medmnist import MedMNIST as MedMNIST
